from loader.inspection.records import *
