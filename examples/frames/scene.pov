// A ball goes round a column; clock runs from 0 to 1.
#version 3.7;
global_settings { assumed_gamma 1.0 }

camera { location <0, 3, -7> look_at <0, 0.8, 0> }
light_source { <6, 8, -6> rgb 1 }
background { rgb <0.75, 0.85, 1> }

plane { y, 0 pigment { checker rgb 0.9, rgb 0.35 } finish { reflection 0.15 } }
cylinder { <0, 0, 0>, <0, 2, 0>, 0.5 pigment { rgb <0.8, 0.6, 0.4> } finish { phong 0.4 } }
sphere { <2.2 * cos(2 * pi * clock), 0.6, 2.2 * sin(2 * pi * clock)>, 0.6 pigment { rgb <0.9, 0.2, 0.2> } finish { phong 0.9 } }
