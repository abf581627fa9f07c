"""Training under faults of every kind, compared with an undisturbed run: `make chaos MINUTES=30`.

store    what is trained on, with damaged records, and the chains over it
server   the store behind HTTP, in a process of its own
trainer  the training loop, in a process of its own
oracle   every batch that must come, and the comparison of each step
leftovers  what processes leave behind
faults   what is done to all of them, and the counts
life     the trainers of one incarnation of a run, from a checkpoint to their end
run      runs, life after life, until the time is over
"""
