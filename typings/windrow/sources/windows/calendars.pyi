from sources.windows.calendars import *
