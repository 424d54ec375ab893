"""Postpone the norm of q and k until their rotation, and do both in the same pass.

    q = self.q_norm(self.q_proj(x).view(shape)).transpose(1, 2)     norms.py: what q_norm computes
    q, k = apply_rotary_pos_emb(q, k, cos, sin)                     source.py: the path to it

becomes a method that passes q on without the norm, and tells the rotation which norm is pending:

    q = unless(n := put_off(self.q_norm), self.q_norm, self.q_proj(x).view(shape)).transpose(1, 2)
    q, k = rotary(q, k, cos, sin, norms_=(n, m))

`n` is a local variable of the call, so code that recomputes a call, runs it on another thread or
traces it finds that call's own. If the norm is not the one that was probed (a hook, another
forward, an adapter in its place), `n` is None, and the module has been called. proof.py runs both
methods with small inputs before one replaces the other.
"""
