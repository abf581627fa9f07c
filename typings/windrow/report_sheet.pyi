from loader.report_sheet import *
