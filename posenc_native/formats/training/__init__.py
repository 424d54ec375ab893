"""Settings of programs that train: Megatron-LM, torchtitan, torchtune."""
