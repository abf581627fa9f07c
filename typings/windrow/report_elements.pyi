from loader.report_elements import *
