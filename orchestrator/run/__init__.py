"""What a person does with a run or a study: prove, submit, follow, resume, cancel, remove, record.

They take plain arguments, return plain results and report their progress as events. They may
import every package except `cli`; they print nothing and ask nobody.
"""
