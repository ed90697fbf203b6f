"""What a person does with a run or a study: prove, submit, follow, resume, cancel, remove, record.
Plain arguments and results; progress as events. It prints nothing and asks nobody.
"""
