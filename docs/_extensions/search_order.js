// The order of search results: pages whose title has all words of the query come first, guides before
// records and pages for contributors. Sphinx adds words of titles and of text up, and does not know
// which page is for whom.
"use strict";

var Scorer = {
  score: ([page, title, anchor, , score]) => {
    const query = new URLSearchParams(window.location.search).get("q") || "";
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const named = words.length && words.every((word) => title.toLowerCase().includes(word));
    const forUsers = /^(installation|tour|questions|howto\/|encodings\/|converting\/|accuracy|speed)/;
    const forFew = /^(architecture|benchmarks|changelog|contributing|maintaining|missed_goals|style)/;
    return score + (named ? 30 : 0) + (forUsers.test(page) ? 10 : 0) - (forFew.test(page) ? 20 : 0);
  },
  // Those of Sphinx.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
