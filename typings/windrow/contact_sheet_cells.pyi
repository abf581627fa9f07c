from loader.contact_sheet_cells import *
