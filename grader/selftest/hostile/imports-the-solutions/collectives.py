from solutions.collectives import *
