"""What each command does, as one function: from files to files.

A workflow checks that its options go together, opens what it reads, does the work and writes its result, whole or not
at all. It prints nothing: messages go to `note`, progress goes to `show`, warnings are Python's. Programs can call it
instead of the command; errors put names of options into backticks, which the command line shows as it takes them.
"""
