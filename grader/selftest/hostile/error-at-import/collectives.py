import torch

SETTINGS = {}
print(SETTINGS["rank"])
