"""The norm of q and k before their rotation, put off until it and done in the same pass.

    q = self.q_norm(self.q_proj(x).view(shape)).transpose(1, 2)     norms.py: what q_norm computes
    q, k = apply_rotary_pos_emb(q, k, cos, sin)                     source.py: the way there

becomes a method that hands on q as it was, and to the rotation what is still to be done with it:

    q = unless(n := put_off(self.q_norm), self.q_norm, self.q_proj(x).view(shape)).transpose(1, 2)
    q, k = rotary(q, k, cos, sin, norms_=(n, m))

`n` is a local variable of the call: what recomputes a call, runs it on another thread or traces it
finds that call's own. Where the norm is not what was probed (a hook, another forward, an adapter in
its place) `n` is None, and the module has been called. proof.py runs both methods with small inputs
before one takes the place of the other.
"""
