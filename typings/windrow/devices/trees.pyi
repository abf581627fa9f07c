from loader.devices.trees import *
