from loader.devices.plan import *
