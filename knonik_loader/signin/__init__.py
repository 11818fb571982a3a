"""Signing in with an organisation's OpenID Connect issuer; imported only where one is configured."""
