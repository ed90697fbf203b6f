"""Formats of others, to and from Spec and Plan: MaxText and Kubernetes."""
