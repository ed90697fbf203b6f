"""The acts on a run: prove, submit, follow, resume, cancel, remove, record, and those on a study.

They take plain arguments, return plain results and report their progress as events. They may
import every package except `cli`; they print nothing and ask nobody.
"""
