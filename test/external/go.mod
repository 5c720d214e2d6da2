module external

go 1.26

require rnic v0.0.0

require golang.org/x/sys v0.45.0 // indirect

replace rnic => ../..
