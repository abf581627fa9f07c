from loader.report_plan import *
