from loader.inspection.contact_sheet import *
