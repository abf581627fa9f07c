from loader.contact_sheet import *
