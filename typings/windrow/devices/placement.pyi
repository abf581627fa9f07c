from loader.devices.placement import *
