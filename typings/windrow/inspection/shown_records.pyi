from loader.inspection.shown_records import *
