"""The race with stragglers: seconds to an accuracy when some workers are slow, in real processes and on the clock.

Both train the same problem from the same model with the same batches, and every step takes the same time in both:
`seconds` of the course, times what the kind of stragglers says for that worker, step and seed. Only what lies between
the steps is measured on one side and modelled on the other.
"""
