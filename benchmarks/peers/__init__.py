"""What this library is compared with, and what rows of any kind are made of."""
