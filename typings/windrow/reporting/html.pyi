from loader.reporting.html import *
