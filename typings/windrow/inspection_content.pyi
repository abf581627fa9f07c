from loader.inspection_content import *
