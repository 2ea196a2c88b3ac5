"""A scripted coordinator, a member with its application, and tests in virtual time."""
