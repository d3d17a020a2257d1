from tutti._command import run

run()
