from loader.inspection.texts import *
