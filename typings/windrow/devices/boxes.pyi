from loader.devices.boxes import *
