from sources.remote import *
