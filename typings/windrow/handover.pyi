from loader.handover import *
