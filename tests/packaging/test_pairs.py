"""Of a test with three parameters, a cover of all pairs of their values runs (matrices.py)."""

import itertools

import pytest

AXES = {"a": range(4), "b": "xyz", "c": [None, 1.5]}


@pytest.fixture(params=AXES["c"])
def c(request):
    return request.param


@pytest.mark.parametrize("a", AXES["a"])
@pytest.mark.parametrize("b", AXES["b"])
def test_every_pair_is_tried(a, b, c, request):
    alike = [
        item.callspec.params
        for item in request.session.items
        if item.nodeid.partition("[")[0] == request.node.nodeid.partition("[")[0]
    ]
    if len(alike) == 1:
        pytest.skip("one row was asked for")
    for one, other in itertools.combinations(AXES, 2):
        tried = {(params[one], params[other]) for params in alike}
        assert tried == set(itertools.product(AXES[one], AXES[other]))
    whole = request.config.getoption("markexpr") != "not slow"
    assert len(alike) == (24 if whole else 12)
