from loader.devices.extra import *
