"""Scalings that tests share."""

REQUIRED = {
    "default": {},
    "linear": {"factor": 2.0},
    "ntk": {"factor": 2.0},
    "ntk_alpha": {"alpha": 2.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 2.0, "original_max_position_embeddings": 4096},
    "llama3": {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 4096},
    "longrope": {"factor": 2.0, "original_max_position_embeddings": 4096,
                 "short_factor": [1.0] * 32, "long_factor": [2.0] * 32},
    "proportional": {},
    "riflex": {"k": 4, "L_test": 66},
    "axial": {},
}  # fmt: skip
