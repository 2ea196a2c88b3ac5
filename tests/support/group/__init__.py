"""A scripted coordinator, a member with its application, and a decorator for tests in virtual time."""
