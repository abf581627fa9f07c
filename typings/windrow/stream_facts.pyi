from loader.stream_facts import *
