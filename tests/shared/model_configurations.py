"""What tests of configurations share."""

from posenc_native.models.facts import ModelFacts, model_facts

ORACLE = "the models of transformers are the oracle of the configurations"

SIZES = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 2}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 32768,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0 + i / 32 for i in range(32)],
    "long_factor": [2.0 + i for i in range(32)],
}


def with_fact(fact):
    """The models that have it, and what it is: what is not so of a model without a row."""
    default = getattr(ModelFacts(), fact)
    facts = {name: getattr(row, fact) for name, row in model_facts().items()}
    return {name: value for name, value in facts.items() if value != default}
