from handout.collectives import __getattr__
