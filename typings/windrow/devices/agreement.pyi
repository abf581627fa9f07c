from loader.devices.agreement import *
