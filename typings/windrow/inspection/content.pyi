from loader.inspection.content import *
