from loader.inspection.contact_sheet_cells import *
