"""Runs on hosts that meet in a folder: plain processes here, pods of a JobSet, or TPU VMs."""
