from loader.devices.delivery import *
