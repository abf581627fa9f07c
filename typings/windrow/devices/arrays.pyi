from loader.devices.arrays import *
