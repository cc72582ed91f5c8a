"""The public side. Sees released answers and public data; imports wall, never teacher."""
