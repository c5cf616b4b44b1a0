"""What each command does, as one function: from files to files.

A workflow checks that its options go together, opens what it reads, does the work and writes its result, whole or not
at all. Programs call it with the options of the command, under the same names: `duoplda train --help` explains those
of `train`. It prints nothing: messages go to `note`, progress goes to `show`, warnings are Python's; `command` is what
was typed, which models and pages keep. Errors put names of options into backticks, which the command line shows as it
takes them.
"""
