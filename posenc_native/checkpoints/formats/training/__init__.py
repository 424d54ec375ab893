"""Settings of training programs: Megatron-LM, torchtitan, torchtune."""
